"""`python -m hotset` is the `hotset` command."""

from hotset.cli.main import main

if __name__ == "__main__":
    main()
