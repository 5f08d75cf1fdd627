"""Pure parts that more than one floor decides by: principals, scopes, sealed tokens, JSON's depth."""
