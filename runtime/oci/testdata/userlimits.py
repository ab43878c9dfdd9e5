# Uses up what the kernel limits for each user ("hold"), or tries whether some is left ("try").
import array, ctypes, fcntl, os, signal, socket, sys, time

libc = ctypes.CDLL(None, use_errno=True)
RT = signal.SIGRTMIN
SET_SIZE, GET_SIZE = 1031, 1032  # F_SETPIPE_SZ, F_GETPIPE_SZ
signal.pthread_sigmask(signal.SIG_BLOCK, [RT])
kept = []


def inotify():
    return libc.inotify_init() >= 0


def queue_signal():
    return libc.sigqueue(os.getpid(), RT, None) == 0


def pipe():
    read, write = os.pipe()
    kept.append((read, write))
    try:
        return fcntl.fcntl(write, SET_SIZE, 1 << 20) >= 1 << 20
    except OSError:
        return False


def send_descriptors(count):
    a, b = socket.socketpair()
    kept.append((a, b))
    try:
        a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * count))])
        return True
    except OSError:
        return False


if sys.argv[1] == "try":
    word = lambda ok: "yes" if ok else "no"
    print("inotify %s, signals %s, pipes %s, descriptors %s"
          % (word(inotify()), word(queue_signal()), word(pipe()), word(send_descriptors(1))))
else:
    for use in (inotify, queue_signal, pipe, lambda: send_descriptors(250)):
        while use():
            pass
    print("held", flush=True)
    time.sleep(60)
