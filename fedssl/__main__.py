"""`python -m fedssl` is `fedssl`."""

from fedssl.cli.main import main

if __name__ == "__main__":
    main()
