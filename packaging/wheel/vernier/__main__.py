"""The command `vernier` of the wheel: `vernier VERB …`, or `python -m vernier VERB …`."""
import os
import shutil
import sys

import vernier


def typed():
    """Returns the command that a user can type: its name if PATH leads to it, else its path."""
    name = os.path.basename(sys.argv[0])
    if name == "__main__.py":
        return f"{sys.executable} -m vernier"
    found = shutil.which(name)
    return name if found and os.path.exists(sys.argv[0]) and os.path.samefile(found, sys.argv[0]) else sys.argv[0]


def main():
    program = vernier.program()
    try:
        settings = vernier.environment(typed())
    except ImportError:  # the program says what is missing, once a verb needs it
        settings = dict(os.environ, VERNIER_CALLED_AS=typed())
    os.execve(program, [program, *sys.argv[1:]], settings)


if __name__ == "__main__":
    main()
