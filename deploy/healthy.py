"""End with status 0 if the server in this container takes requests, as a HEALTHCHECK."""

import os
import ssl
import urllib.request

scheme = "https" if os.environ.get("EDGESPEC_TLS_CERT") else "http"
url = f"{scheme}://127.0.0.1:{os.environ.get('EDGESPEC_PORT', 8080)}/health"
# The certificate is for the name that clients know, and this is the same machine.
urllib.request.urlopen(url, timeout=5, context=ssl._create_unverified_context())
