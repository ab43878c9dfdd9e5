# Argument: what to use up.


def memory():
    """Processes of 2 MB each, replaced when they die."""
    alive = set()
    while True:
        try:
            pid = os.fork()
            if pid == 0:
                keep = bytearray(os.urandom(4096)) * 512
                time.sleep(1000)
            alive.add(pid)
        except OSError:
            time.sleep(0.01)
        while True:
            try:
                done, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if done == 0:
                break


def one():
    """One process that takes more and more."""
    keep = []
    while True:
        keep.append(bytearray(os.urandom(4096)) * 256)


def child():
    """A child goes over the cap, its parent tells by its exit code."""
    pid = os.fork()
    if pid == 0:
        one()
    _, status = os.waitpid(pid, 0)
    sys.exit(7 if os.WIFSIGNALED(status) else 0)


def pids():
    """As many processes as there may be; fails when it has them."""
    count = 1
    while True:
        try:
            if os.fork() == 0:
                time.sleep(1000)
                os._exit(0)
        except OSError as e:
            tell({"count": count, "error": name(e.errno)})
            sys.stdout.flush()
            sys.exit(1)
        count += 1


def threads():
    count, stop = 1, threading.Event()
    threading.stack_size(64 << 10)
    while True:
        try:
            threading.Thread(target=stop.wait, daemon=True).start()
        except RuntimeError:
            tell({"count": count})
            sys.stdout.flush()
            os._exit(1)
        count += 1


def files(folder):
    """How much one file takes."""
    path, size, said = os.path.join(folder, "flood"), 0, "ok"
    piece = bytes(256 << 10)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        while size < 1 << 30:
            size += os.write(fd, piece)
    except OSError as e:
        said = name(e.errno)
    return [size, said]


def tmpfs(*folders):
    told = {f: files(f) for f in folders}
    if "keep" not in sys.argv:
        for f in folders:
            os.unlink(os.path.join(f, "flood"))
    tell(told)


def inodes(folder):
    """How many empty files there can be."""
    count = 0
    print("begin", flush=True)
    try:
        while count < 5_000_000:
            os.close(os.open("%s/%d" % (folder, count), os.O_WRONLY | os.O_CREAT))
            count += 1
            if count % 5000 == 0:
                print(count, flush=True)
    except OSError as e:
        print(name(e.errno), flush=True)
        sys.exit(1)


def sockets(processes, pairs):
    """How many bytes are under way in TCP connections that nobody reads from."""
    r, w = os.pipe()
    for _ in range(int(processes)):
        if os.fork() == 0:
            listener, keep, held = socket.create_server(("127.0.0.1", 0)), [], 0
            for _ in range(int(pairs)):
                try:
                    one = socket.create_connection(listener.getsockname())
                    keep += [one, listener.accept()[0]]
                    one.setblocking(False)
                    while True:
                        held += one.send(bytes(64 << 10))
                except BlockingIOError:
                    pass
                except OSError:
                    break
            os.write(w, b"%d\n" % held)
            time.sleep(1000)
    os.close(w)
    with os.fdopen(r) as f:
        tell(sum(int(f.readline()) for _ in range(int(processes))))


def cpu(seconds, processes):
    """CPU time over wall time of some processes that do nothing else."""
    for _ in range(int(processes)):
        if os.fork() == 0:
            end = time.monotonic() + float(seconds)
            while time.monotonic() < end:
                pass
            os._exit(0)
    begin = time.monotonic()
    for _ in range(int(processes)):
        os.wait()
    took = os.times()
    tell((took.children_user + took.children_system) / (time.monotonic() - begin))


def use(mib, processes, seconds):
    """Some of everything, for the figures."""
    keep = bytearray(os.urandom(4096)) * (256 * int(mib))
    for _ in range(int(processes)):
        if os.fork() == 0:
            time.sleep(1000)
    while sum(os.times()[:2]) < float(seconds):
        pass


{"memory": memory, "one": one, "child": child, "pids": pids, "threads": threads, "tmpfs": tmpfs, "inodes": inodes, "sockets": sockets,
 "cpu": cpu, "use": use}[sys.argv[1]](*[a for a in sys.argv[2:] if a != "keep"])
