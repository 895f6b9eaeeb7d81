"""`python -m fedssl` is `fedssl`."""

from fedssl.cli import main

if __name__ == "__main__":
    main()
