"""What a call to another service shows of the secret that all of them share (internal_secret.py)."""


def headers_to(base_url: str, secret: str | None) -> dict[str, str]:
    """What each request to a peer carries beside its own headers."""
    if secret is None or not base_url.startswith("http://"):
        return {}
    return {"authorization": f"Bearer {secret}"}
