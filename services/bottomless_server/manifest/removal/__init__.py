"""Everything that takes data away: retention, trims, leases against it, the deleter, garbage."""
