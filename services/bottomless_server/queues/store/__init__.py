"""The store: message files on the disk, how they grow, are read, compacted and removed."""
