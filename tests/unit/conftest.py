"""Properties are checked without a deadline: how busy the machine is says nothing of the code."""

from hypothesis import settings

settings.register_profile("unit", deadline=None, database=None)
settings.load_profile("unit")
