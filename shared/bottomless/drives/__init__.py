"""What a user needs of drives: the protocol of an object store, and what S3's answers mean."""
