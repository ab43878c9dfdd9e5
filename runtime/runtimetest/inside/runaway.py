# Tries to survive the end of the command. Argument: how. Each way prints "ready" when it has started.
import resource

IGNORED = [n for n in range(1, 65) if n not in (9, 19, 32, 33)]


def deaf():
    for n in IGNORED:
        try:
            signal.signal(n, signal.SIG_IGN)
        except (OSError, ValueError):
            pass


def ready():
    print("ready", flush=True)


def daemon(keep=False):
    """Forks twice, with a new session, another name, no environment and no inherited descriptor."""
    if os.fork() == 0:
        os.setsid()
        deaf()
        if os.fork() == 0:
            libc.prctl(4, 0, 0, 0, 0)  # not dumpable: its files in /proc are root's
            if not keep:
                os.closerange(0, 256)
            os.chdir("/")
            os.execve("/bin/sleep", ["kworker/0:1", "1000"], {})
        os._exit(0)
    os.wait()
    ready()


def runners(count=100):
    """Each process forks and exits, so that no scan by pid sees the same process twice."""
    go_r, go_w = os.pipe()
    for _ in range(count):
        if os.fork() == 0:
            os.close(go_w)
            os.setsid()
            os.read(go_r, 1)
            while True:
                try:
                    if os.fork() != 0:
                        os._exit(0)
                except OSError:
                    pass
    os.close(go_w)
    ready()


def bomb():
    deaf()
    ready()
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            pass


def traced():
    """Two processes trace each other's stopped children, and one is the parent of its own tracer."""
    request = 101 if platform.machine() == "x86_64" else 117
    for _ in range(2):
        if os.fork() == 0:
            child = os.fork()
            if child == 0:
                syscall(request, 0, 0, 0, 0)
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(1000)
            os.waitpid(child, os.WUNTRACED)
            syscall(request, 0x4206, os.getppid(), 0, 0)
            time.sleep(1000)
    a = os.fork()
    if a == 0:
        time.sleep(0.2)
        syscall(request, 0x4206, os.getppid(), 0, 0x1E)
        deaf()
        time.sleep(1000)
    syscall(request, 0x4206, a, 0, 0x1E)
    ready()
    time.sleep(1000)


def keeper():
    """Traces processes of its user that sleep for 4321 seconds, and never waits for them."""
    request = 101 if platform.machine() == "x86_64" else 117
    kept = set()
    ready()
    while True:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    if pid not in kept and f.read() == b"sleep\x004321\x00" and syscall(request, 0x4206, int(pid), 0, 0) == 0:
                        kept.add(pid)
                        print("kept", flush=True)
            except OSError:
                pass
        time.sleep(0.01)


def quitter():
    """Exits with 7 once its second thread is traced."""
    thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
    thread.start()
    print("ready %d." % thread.native_id, flush=True)
    while True:
        with open("/proc/self/task/%d/status" % thread.native_id) as f:
            if "TracerPid:\t0\n" not in f.read():
                os._exit(7)
        time.sleep(0.01)


def thread_keeper():
    """Traces one thread and never waits for it."""
    got = syscall(101 if platform.machine() == "x86_64" else 117, 0x4206, int(sys.argv[2]), 0, 0)
    print("kept" if got == 0 else "refused: %s" % got, flush=True)
    time.sleep(1000)


def stopped():
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            while True:
                os.kill(os.getpid(), signal.SIGSTOP)
    ready()
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


def headless():
    """Ends the first thread while another runs: the process looks like a zombie but is alive."""
    def go_on():
        while True:
            time.sleep(0.01)

    threading.Thread(target=go_on, daemon=True).start()
    if os.fork() == 0:
        threading.Thread(target=go_on, daemon=True).start()
        libc.syscall(60 if platform.machine() == "x86_64" else 93, 0)
    ready()
    libc.syscall(60 if platform.machine() == "x86_64" else 93, 0)


def subreaper():
    """Becomes a subreaper, ignores all signals, and runs at idle priority."""
    libc.prctl(36, 1, 0, 0, 0)
    deaf()
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        pass  # gVisor has only one scheduling policy
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
            while True:
                pass
    ready()
    while True:
        time.sleep(1)


def sleepers():
    """Starts threads until the limit."""
    def sleep():
        time.sleep(1000)

    threading.stack_size(64 << 10)
    ready()
    while True:
        try:
            threading.Thread(target=sleep).start()
        except RuntimeError:
            time.sleep(0.05)


{
    "daemon": daemon,
    "daemon-keeps-output": lambda: daemon(True),
    "runners": runners,
    "runners-waited-for": lambda: (runners(), time.sleep(1000)),
    "bomb": bomb,
    "traced": traced,
    "keeper": keeper,
    "quitter": quitter,
    "thread-keeper": thread_keeper,
    "stopped": stopped,
    "headless": headless,
    "subreaper": subreaper,
    "threads": sleepers,
}[sys.argv[1]]()
