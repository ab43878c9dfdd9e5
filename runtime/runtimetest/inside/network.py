# Arguments: a JSON list of host addresses ([family, host, port]), and the name of an abstract socket on the host.
targets, abstract = json.loads(sys.argv[1]), sys.argv[2]


def sockets():
    opened = []
    for family in range(0, 64):
        if family in (socket.AF_INET, socket.AF_INET6):
            protocols = [0, 1, 2, 6, 17, 33, 58, 115, 132, 136, 255, 256, 262]
        elif family == socket.AF_NETLINK:
            protocols = range(0, 24)
        else:
            protocols = [0, 1, 2, 3, 0x300]
        for kind in range(1, 11):
            for protocol in protocols:
                fd = libc.socket(family, kind, protocol)
                if fd >= 0:
                    os.close(fd)
                    opened.append([family, kind, protocol])
    return opened


def pairs():
    opened = []
    for family in range(0, 64):
        for kind in (1, 2, 5):
            two = (ctypes.c_int * 2)()
            if libc.socketpair(family, kind, 0, two) == 0:
                opened.append(family)
    return sorted(set(opened))


def int80(number, one, two):
    """Makes a 32-bit system call from 64-bit code."""
    code = bytes.fromhex("53" "89f8" "89f3" "89d1" "31d2" "cd80" "5b" "4898" "c3")
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
                     flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)
    page[: len(code)] = code
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    if isinstance(two, list):
        page[1024 : 1024 + 4 * len(two)] = struct.pack("<%dI" % len(two), *two)
        two = at + 1024
    got = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_long)(at)(number, one, two)
    return got if got >= 0 else name(-got)


def other_tables():
    """Opens sockets through the machine's other system call tables."""
    if platform.machine() != "x86_64":
        return {}
    return {
        "socketcall vsock": in_child(lambda: int80(102, 1, [40, 1, 0])),
        "socketcall inet": in_child(lambda: int80(102, 1, [2, 1, 0])),
        "socket vsock": in_child(lambda: int80(359, 40, 1)),
        "socket packet": in_child(lambda: int80(359, 17, 3)),
        "x32 socket vsock": in_child(lambda: syscall(0x40000000 | 41, 40, 1, 0)),
        "x32 socket unix": in_child(lambda: syscall(0x40000000 | 41, 1, 1, 0)),
    }


def reach(family, host, port):
    def tcp():
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(2)
            s.connect((host, port))

    def udp():
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.sendto(b"from inside", (host, port))

    return [attempt(tcp), attempt(udp)]


def unix(address):
    def connect():
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(2)
            s.connect(address)

    return attempt(connect)


def loopback():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=60) as c:
        s, _ = server.accept()
        with s:
            s.sendall(b"x")
            return c.recv(1) == b"x"


report({
    "sockets": sockets(),
    "pairs": pairs(),
    "other_tables": other_tables(),
    "interfaces": [n for _, n in socket.if_nameindex()],
    "sys_interfaces": (os.listdir("/sys/class/net") if os.path.isdir("/sys/class/net") else []),
    "routes": [l.split()[0] for l in open("/proc/net/route").readlines()[1:]],
    "reached": {"%s %d" % (h, p): reach(f, h, p) for f, h, p in targets},
    "abstract": unix("\0" + abstract),
    "listed": abstract in open("/proc/net/unix").read(),
    "engine": {p: unix(p) for p in ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock",
                                    "/run/orchestrator/host.sock", "/run/guest/bridge.sock")},
    "resolved": attempt(lambda: socket.getaddrinfo("example.com", 80)),
    "loopback": attempt(loopback),
})
