"""A receiver that checks every delivery with the public Python package, unchanged.

Prints {"port": n}, reads the signing secret from standard input, then prints one JSON line per request: what the
package said about the delivery as it came, about the same delivery with one byte changed, and under another secret.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook

OTHER_SECRET = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
secret = None
printing = threading.Lock()


def refused(key, body, headers):
    try:
        Webhook(key).verify(body, headers)
    except Exception:
        return True
    return False


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = dict(self.headers.items())
        report = {"body": body.decode("utf-8", "replace")}
        try:
            Webhook(secret).verify(body, headers)
            report["accepted"] = True
        except Exception as error:
            report["accepted"] = False
            report["error"] = repr(error)
        tampered = body[:-1] + (b" " if body[-1:] != b" " else b"\n")
        report["refused_tampered"] = refused(secret, tampered, headers)
        report["refused_other_secret"] = refused(OTHER_SECRET, body, headers)
        with printing:
            print(json.dumps(report), flush=True)
        self.send_response(200 if report["accepted"] else 400)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
print(json.dumps({"port": server.server_address[1]}), flush=True)
secret = sys.stdin.readline().strip()
server.serve_forever()
