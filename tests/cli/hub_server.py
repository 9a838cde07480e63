"""A hub in a thread: repositories of files, and every way in which a server can fail.

hub.repos[name][path] = bytes. Faults (hub.faults, by path) for the next answers of a file, one each:
  ("break", n)  close the connection after n bytes     ("stall", n)   send n bytes and then nothing
  ("status", s) answer s                               ("lie", d)     the listing's size is d bytes off (stays)
  ("corrupt",)  flip a byte                            ("whole",)     answer a range request with the whole file
"""
import collections
import hashlib
import http.server
import json
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        url = urllib.parse.urlparse(self.path)
        parts = urllib.parse.unquote(url.path).strip("/").split("/")
        hub.requests.append((self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}" and parts[0] != "cdn":
            return self.send(401)
        if parts[:2] == ["api", "models"]:
            return self.listing(hub, "/".join(parts[2:4]), parts[4], urllib.parse.parse_qs(url.query))
        if parts[0] == "cdn":
            return self.file(hub, "/".join(parts[1:3]), "/".join(parts[3:]))
        repo, path = "/".join(parts[:2]), "/".join(parts[4:])
        if hub.cdn:
            return self.send(302, Location=f"{hub.cdn}/cdn/{repo}/{urllib.parse.quote(path)}")
        return self.file(hub, repo, path)

    def listing(self, hub, repo, kind, query):
        files = hub.repos.get(repo)
        if files is None:
            return self.send(404)
        if kind == "refs":
            body = {"branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": hub.commit}], "tags": []}
            return self.send(200, json.dumps(body).encode())
        names, start = sorted(files), int(query.get("cursor", ["0"])[0])
        page = names[start:start + hub.page_size]
        entries = [{"type": "file", "oid": "0" * 40, "size": len(files[n]), "path": n,
                    "lfs": {"oid": hashlib.sha256(files[n]).hexdigest(), "size": len(files[n]) + hub.lies.get(n, 0)}}
                   for n in page]
        headers = {}
        if start + hub.page_size < len(names):
            headers["Link"] = f'<{hub.url}/api/models/{repo}/tree/{hub.commit}?recursive=true&cursor={start + hub.page_size}>; rel="next"'
        return self.send(200, json.dumps(entries).encode(), **headers)

    def file(self, hub, repo, path):
        body = hub.repos.get(repo, {}).get(path)
        if body is None:
            return self.send(404)
        fault = hub.faults[path].popleft() if hub.faults[path] and self.command == "GET" else (None,)
        if fault[0] == "status":
            return self.send(fault[1])
        etag = '"' + hashlib.md5(body).hexdigest() + '"'
        total, start = len(body), 0
        if fault[0] == "corrupt":
            body = body[:-1] + bytes([body[-1] ^ 1])
        wanted = self.headers.get("Range")
        if wanted and fault[0] != "whole":
            start = int(wanted.split("=")[1].rstrip("-"))
            if start >= total:
                return self.send(416)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.send_header("Content-Length", str(total - start))
        self.send_header("ETag", etag)
        self.end_headers()
        if self.command == "HEAD":
            return
        body = body[start:]
        if fault[0] in ("break", "stall"):
            self.wfile.write(body[:fault[1]])
            self.wfile.flush()
            if fault[0] == "stall":
                hub.stalled.wait(20)
            self.close_connection = True
            self.connection.close()
            return
        for at in range(0, len(body), 1 << 16):
            self.wfile.write(body[at:at + (1 << 16)])
            if hub.slow:
                time.sleep(hub.slow)


class Hub:
    def __init__(self):
        self.repos, self.faults, self.lies = {}, collections.defaultdict(collections.deque), {}
        self.requests, self.commit, self.token, self.cdn, self.slow = [], COMMIT, None, None, 0
        self.page_size, self.stalled = 1000, threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.hub, self.server.daemon_threads = self, True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.stalled.set()
        self.server.shutdown()
        self.server.server_close()
