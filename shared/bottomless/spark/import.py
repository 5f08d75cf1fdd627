# ruff: noqa: N999  # the name of the command
"""`python -m bottomless.spark.import`: the command of this name, without the others."""

from bottomless.spark.commands import main

if __name__ == "__main__":
    main("import")
