"""See torch/__init__.py."""


class Module:
    pass
