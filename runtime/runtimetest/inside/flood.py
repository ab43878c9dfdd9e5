# Uses up a resource. Argument: which one.


def memory():
    """Starts processes of 2 MB each and replaces those that die."""
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
    """Allocates memory without end in one process."""
    keep = []
    while True:
        keep.append(bytearray(os.urandom(4096)) * 256)


def child():
    """Exceeds the memory limit in a child and reports its death by the exit code."""
    pid = os.fork()
    if pid == 0:
        one()
    _, status = os.waitpid(pid, 0)
    sys.exit(7 if os.WIFSIGNALED(status) else 0)


def pids():
    """Starts processes until the limit, then exits with 1."""
    count = 1
    while True:
        try:
            if os.fork() == 0:
                time.sleep(1000)
                os._exit(0)
        except OSError as e:
            report({"count": count, "error": name(e.errno)})
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
            report({"count": count})
            sys.stdout.flush()
            os._exit(1)
        count += 1


def files(dir):
    """Fills one file and returns its size and the error."""
    path, size, result = os.path.join(dir, "flood"), 0, "ok"
    piece = bytes(256 << 10)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        while size < 1 << 30:
            size += os.write(fd, piece)
    except OSError as e:
        result = name(e.errno)
    return [size, result]


def tmpfs(*dirs):
    results = {f: files(f) for f in dirs}
    if "keep" not in sys.argv:
        for f in dirs:
            os.unlink(os.path.join(f, "flood"))
    report(results)


def inodes(dir):
    """Creates empty files until it fails."""
    count = 0
    print("begin", flush=True)
    try:
        while count < 5_000_000:
            os.close(os.open("%s/%d" % (dir, count), os.O_WRONLY | os.O_CREAT))
            count += 1
            if count % 5000 == 0:
                print(count, flush=True)
    except OSError as e:
        print(name(e.errno), flush=True)
        sys.exit(1)


def sockets(processes, pairs):
    """Reports how many bytes fit into TCP connections that are not read."""
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
        report(sum(int(f.readline()) for _ in range(int(processes))))


def cpu(seconds, processes):
    """Reports CPU time divided by wall time of busy processes."""
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
    report((took.children_user + took.children_system) / (time.monotonic() - begin))


def use(mib, processes, seconds):
    """Uses memory, processes and CPU time for the usage figures."""
    keep = bytearray(os.urandom(4096)) * (256 * int(mib))
    for _ in range(int(processes)):
        if os.fork() == 0:
            time.sleep(1000)
    while sum(os.times()[:2]) < float(seconds):
        pass


{"memory": memory, "one": one, "child": child, "pids": pids, "threads": threads, "tmpfs": tmpfs, "inodes": inodes, "sockets": sockets,
 "cpu": cpu, "use": use}[sys.argv[1]](*[a for a in sys.argv[2:] if a != "keep"])
