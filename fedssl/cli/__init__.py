"""The command line: `main` is the program, `commands` has one module per command."""
