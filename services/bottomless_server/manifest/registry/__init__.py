"""The streams that there are: their records, in coordination and in the bucket."""
