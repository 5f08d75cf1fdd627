"""Typed reads and writes on drives and coordination, through their protocols only; puts are repeated here."""
