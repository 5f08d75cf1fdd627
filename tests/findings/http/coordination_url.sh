# A url of coordination that cannot be read ends in a traceback, and says the beginning of the password
cd "$(git rev-parse --show-toplevel)"
for u in 'redis://:tOpSecretPass/w0rd@127.0.0.1:6379/0' 'redis://:tOpSecretPass#w0rd@127.0.0.1:6379/0' 'redis://127.0.0.1:x/0' 'redis://127.0.0.1:99999/0' 'redis://[::1/0' 'redis://127.0.0.1:6379/abc' 'redis://127.0.0.1:6379/0?foo=bar&socket_timeout=x'; do
echo "== $u"; BOTTOMLESS_DATA_DIR=/tmp/none BOTTOMLESS_STORE_URL=file:///tmp/none/s BOTTOMLESS_MANIFEST_URL=unix:///tmp/x BOTTOMLESS_COORDINATION_URL="$u" timeout 8 .venv/bin/bottomless serve manifest --port 0 2>&1 | tail -3 | cut -c1-300
done
