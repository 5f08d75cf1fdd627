"""The fragment-uploader: cuts committed chunks into fragments, puts them, registers them."""
