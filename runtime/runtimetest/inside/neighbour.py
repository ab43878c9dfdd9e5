# Two sandboxes that try to find each other. Arguments: "offer" or "look", and a port.
what, port = sys.argv[1], int(sys.argv[2])
name_, key = "\0neighbour-%d" % port, 0x6F000000 + port


def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(30)
        s.connect(address)


def shared():
    libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    if libc.shmget(key, 4096, 0o1666 if what == "offer" else 0o666) < 0:
        raise OSError(ctypes.get_errno(), "shmget")


def look():
    return {
        "abstract socket": attempt(lambda: connect(socket.AF_UNIX, name_)),
        "port": attempt(lambda: connect(socket.AF_INET, ("127.0.0.1", port))),
        "port of version 6": attempt(lambda: connect(socket.AF_INET6, ("::1", port))),
        "shared memory": attempt(shared),
        "file in /dev/shm": attempt(lambda: open("/dev/shm/neighbour").close()),
        "file in /tmp": attempt(lambda: open("/tmp/neighbour").close()),
        "process": attempt(lambda: connect(socket.AF_UNIX, name_)) if any(
            b"neighbour-mark" in open("/proc/%s/cmdline" % p, "rb").read() and p != str(os.getpid())
            for p in os.listdir("/proc") if p.isdigit()) else "ENOENT",
    }


if what == "look":
    report(look())
else:
    sockets = [socket.socket(socket.AF_UNIX), socket.create_server(("", port))]
    if os.path.exists("/proc/net/if_inet6"):
        attempt(lambda: sockets.append(socket.create_server(("::", port), family=socket.AF_INET6)))
    sockets[0].bind(name_)
    sockets[0].listen()
    shared()
    for place in ("/dev/shm", "/tmp"):
        open(place + "/neighbour", "w").close()
    report(look())
    print("ready", flush=True)
    time.sleep(1000)
