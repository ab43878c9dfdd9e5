# The command's side of connections over the host's streams. Arguments: an action, and a port or a count.
what, port = sys.argv[1], int(sys.argv[2])
proxy = ("127.0.0.1", 3128)


def echo(c):
    with c:
        while data := c.recv(1 << 16):
            c.sendall(data)
        attempt(lambda: c.sendall(b"end"))


def serve(s):
    while True:
        threading.Thread(target=echo, args=(s.accept()[0],), daemon=True).start()


def listen():
    servers = {"4": socket.create_server(("127.0.0.1", port))}
    if os.path.exists("/proc/net/if_inet6"):
        attempt(lambda: servers.__setitem__("6", socket.create_server(("::1", port + 1), family=socket.AF_INET6)))
    for s in servers.values():
        threading.Thread(target=serve, args=(s,), daemon=True).start()
    print("ready", *servers, flush=True)
    time.sleep(1000)


def resolve():
    try:
        socket.getaddrinfo("example.com", 443)
        return "ok"
    except socket.gaierror:
        return "no"


def look():
    report({
        "proxy": attempt(lambda: socket.create_connection(proxy, 60).close()),
        "interfaces": [i[1] for i in socket.if_nameindex()],
        "resolved": resolve(),
        "env": os.environ.get("https_proxy", ""),
        "placeholder": os.environ.get("TOKEN", ""),
    })


def say():
    with socket.create_connection(proxy, 60) as c:
        c.sendall(b"hello")
        c.shutdown(socket.SHUT_WR)
        print(b"".join(iter(lambda: c.recv(100), b"")).decode())


def hold():
    held = [socket.create_connection(proxy, 60) for _ in range(port)]
    print("ready", len(held), flush=True)
    time.sleep(1000)


def take():
    s = socket.create_server(proxy)
    print("ready", flush=True)
    time.sleep(1000)


{"listen": listen, "look": look, "say": say, "hold": hold, "take": take}[what]()
