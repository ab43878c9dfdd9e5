# Prepended to every program in this directory. The programs run inside a sandbox as an ordinary command and print
# one JSON value on stdout. They only report what happened; the Go tests decide whether it is right.
import ctypes, errno, json, mmap, os, platform, signal, socket, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def name(number):
    return errno.errorcode.get(number, str(number))


def syscall(number, *args):
    """Returns the result of a system call, or the name of the error."""
    ctypes.set_errno(0)
    got = libc.syscall(ctypes.c_long(number), *[a if isinstance(a, ctypes._Pointer) or isinstance(a, ctypes.Array) else ctypes.c_long(a) for a in args])
    return name(ctypes.get_errno()) if got < 0 else got


def in_child(function):
    """Calls function in a child and returns its result, the name of its error, or "killed N" for a signal."""
    sys.stdout.flush()
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            os.close(r)
            try:
                result = function()
            except OSError as e:
                result = name(e.errno)
            os.write(w, json.dumps(result).encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        result = f.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "killed %d" % os.WTERMSIG(status)
    return json.loads(result) if result else "nothing"


def attempt(function):
    """Returns "ok", or the name of the error that function raised."""
    try:
        function()
        return "ok"
    except OSError as e:
        return name(e.errno) if e.errno else type(e).__name__


def report(value):
    print(json.dumps(value))
