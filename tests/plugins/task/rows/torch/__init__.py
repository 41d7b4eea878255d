"""As much of PyTorch as an exported model.py needs to read rows, for machines that have none."""
float64 = int64 = None


def zeros(*_, **__):
    return None


def no_grad():
    return lambda function: function
