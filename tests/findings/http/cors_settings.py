"""Origins that an operator may set and that no browser ever sends."""
import os,sys
os.environ["BOTTOMLESS_CORS_ORIGINS"]="https://App.Example.org, https://app.example.net:443, http://[::1]:3000"
from bottomless_server.settings_check import SETTINGS, check_settings
check_settings(list(SETTINGS),os.environ); s=SETTINGS["reader"](); print("taken at the start:",s.allowed_origins)
for sent in ("https://app.example.org","https://app.example.net"): print("a browser sends",sent,"->","allowed" if sent in s.allowed_origins else "NOT allowed")
