"""`python -m bottomless.spark.replay`: the command of this name, without the others."""

from bottomless.spark.commands import main

if __name__ == "__main__":
    main("replay")
