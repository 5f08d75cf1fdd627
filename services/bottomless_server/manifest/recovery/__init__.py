"""When something was lost: rebuild, takeover, an accepted gap."""
