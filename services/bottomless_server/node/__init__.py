"""What every service needs that owns data on a disk: its lease, its claims, its directory, its room."""
