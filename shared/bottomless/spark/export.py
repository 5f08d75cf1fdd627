"""`python -m bottomless.spark.export`: the command of this name, without the others."""

from bottomless.spark.commands import main

if __name__ == "__main__":
    main("export")
