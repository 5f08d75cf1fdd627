"""The reader: serves records, offsets and fragments from both tiers. Owns nothing durable."""
