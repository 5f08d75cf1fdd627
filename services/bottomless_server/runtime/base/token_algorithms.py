"""The algorithms that signed tokens may be signed with: settings choose among them, identity checks by them."""

from typing import Final

ALGORITHMS: Final[dict[str, tuple[str, str | None]]] = {
    **{f"RS{bits}": ("RSA", None) for bits in (256, 384, 512)},
    **{f"PS{bits}": ("RSA", None) for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""What may be allowed, with the kind and curve of its keys. None of them has a secret that both
sides know: such a one could be taken from a public key."""
