"""What the uploader decides, without a clock, a loop or a socket."""
