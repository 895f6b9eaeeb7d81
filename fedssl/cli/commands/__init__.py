"""One module per command, or small group of commands, of the program.

These modules are imported for every command and for --help. They import torch, pydantic and
modules that need these only inside functions.
"""
