# Makes calls that ordinary programs rely on and prints those that fail, with the reason.
import fcntl, select, subprocess, tempfile

failed = {}


def tried(call):
    try:
        call()
    except Exception as e:
        failed[call.__name__] = repr(e)


r, w = os.pipe()
a, b = socket.socketpair()
file = tempfile.TemporaryFile()
file.write(b"x" * 8192)
file.flush()


@tried
def select_():
    assert select.select([r], [w], [], 1) == ([], [w], [])
    assert select.select([r], [], [], 0.01) == ([], [], [])


@tried
def poll():
    p = select.poll()
    p.register(w, select.POLLOUT)
    assert p.poll(1000)


@tried
def epoll():
    p = select.epoll()
    p.register(w, select.EPOLLOUT)
    assert p.poll(1)


@tried
def eventfd():
    fd = os.eventfd(3)
    assert os.eventfd_read(fd) == 3


@tried
def memfd():
    os.write(os.memfd_create("m"), b"x")


@tried
def sendfile():
    assert os.sendfile(a.fileno(), file.fileno(), 0, 4096) == 4096


@tried
def scatter():
    assert os.pwritev(file.fileno(), [b"ab", b"cd"], 0) == 4
    assert os.preadv(file.fileno(), [bytearray(2), bytearray(2)], 0) == 4


@tried
def allocate():
    os.posix_fallocate(file.fileno(), 0, 16384)


@tried
def locks():
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)


@tried
def descriptors():
    socket.send_fds(b, [b"x"], [r])
    while True:
        data, fds, _, _ = socket.recv_fds(a, 8192, 4)
        if fds:
            return


@tried
def shared():
    m = mmap.mmap(-1, 4096)
    if os.fork() == 0:
        m[0] = 7
        os._exit(0)
    os.wait()
    assert m[0] == 7


@tried
def signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.sigtimedwait({signal.SIGUSR1}, 1)
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.pause()


@tried
def threads():
    t = threading.Thread(target=lambda: None)
    t.start()
    t.join()


@tried
def children():
    assert subprocess.run(["cat"], input=b"x", capture_output=True, timeout=60).stdout == b"x"
    assert subprocess.run(["sleep", "0.01"], start_new_session=True).returncode == 0


@tried
def processors():
    assert os.sched_getaffinity(0)
    os.getrandom(16)
    os.nice(1)


print(json.dumps(failed))
