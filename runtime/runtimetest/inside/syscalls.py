# Makes forbidden system calls, each in a child, with arguments that reach the kernel's code if no
# filter stops them.
x86 = platform.machine() == "x86_64"
CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID = 0x10000000, 0x40000000, 0x00020000, 0x20000000
zeros = lambda n: ctypes.create_string_buffer(n)

# Name: number on x86-64, number on arm64 (None: does not exist), arguments.
calls = {
    "mount": (165, 40, [zeros(8), ctypes.create_string_buffer(b"/tmp"), ctypes.create_string_buffer(b"tmpfs"), 0, 0]),
    "remount /": (165, 40, [zeros(8), ctypes.create_string_buffer(b"/"), 0, 32, 0]),
    "umount2": (166, 39, [ctypes.create_string_buffer(b"/tmp"), 2]),
    "pivot_root": (155, 41, [zeros(8), zeros(8)]),
    "chroot": (161, 51, [ctypes.create_string_buffer(b"/tmp")]),
    "open_tree": (428, 428, [-100, ctypes.create_string_buffer(b"/"), 1]),
    "move_mount": (429, 429, [-1, zeros(8), -1, zeros(8), 4]),
    "fsopen": (430, 430, [ctypes.create_string_buffer(b"tmpfs"), 0]),
    "fsmount": (432, 432, [-1, 0, 0]),
    "mount_setattr": (442, 442, [-100, ctypes.create_string_buffer(b"/"), 0, zeros(32), 32]),
    "unshare user": (272, 97, [CLONE_NEWUSER]),
    "unshare net": (272, 97, [CLONE_NEWNET]),
    "unshare mount": (272, 97, [CLONE_NEWNS]),
    "unshare pid": (272, 97, [CLONE_NEWPID]),
    "setns": (308, 268, [0, 0]),
    "clone user": (56, 220, [CLONE_NEWUSER | 17, 0, 0, 0, 0]),
    "clone net": (56, 220, [CLONE_NEWNET | 17, 0, 0, 0, 0]),
    "clone user and net": (56, 220, [CLONE_NEWUSER | CLONE_NEWNET | 17, 0, 0, 0, 0]),
    "clone3": (435, 435, [zeros(88), 88]),
    "bpf": (321, 280, [0, zeros(120), 120]),
    "add_key": (248, 217, [ctypes.create_string_buffer(b"user"), ctypes.create_string_buffer(b"x"), ctypes.create_string_buffer(b"y"), 1, -3]),
    "request_key": (249, 218, [ctypes.create_string_buffer(b"user"), ctypes.create_string_buffer(b"x"), 0, -3]),
    "keyctl": (250, 219, [0, -3, 1]),
    "userfaultfd": (323, 282, [1]),
    "io_uring_setup": (425, 425, [1, zeros(120)]),
    "io_uring_enter": (426, 426, [-1, 0, 0, 0, 0]),
    "io_uring_register": (427, 427, [-1, 0, 0, 0]),
    "perf_event_open": (298, 241, [zeros(128), 0, -1, -1, 0]),
    "open_by_handle_at": (304, 265, [-100, zeros(128), 0]),
    "fanotify_init": (300, 262, [0, 0]),
    "kexec_load": (246, 104, [0, 0, 0, 0]),
    "init_module": (175, 105, [zeros(8), 8, zeros(8)]),
    "finit_module": (313, 273, [-1, zeros(8), 0]),
    "delete_module": (176, 106, [zeros(8), 0]),
    "reboot": (169, 142, [0, 0, 0, 0]),
    "swapon": (167, 224, [zeros(8), 0]),
    "acct": (163, 89, [0]),
    "syslog": (103, 116, [10, 0, 0]),
    "settimeofday": (164, 170, [zeros(16), 0]),
    "clock_settime": (227, 112, [0, zeros(16)]),
    "sethostname": (170, 161, [zeros(8), 1]),
    "setdomainname": (171, 162, [zeros(8), 1]),
    "quotactl": (179, 60, [0, 0, 0, 0]),
    "kcmp": (312, 272, [1, 1, 0, 0, 0]),
    "pidfd_getfd": (438, 438, [-1, 0, 0]),
    "process_madvise": (440, 440, [-1, 0, 0, 0, 0]),
    "move_pages": (279, 239, [0, 0, 0, 0, 0, 0]),
    "migrate_pages": (256, 238, [0, 0, 0, 0]),
    "mbind": (237, 235, [0, 0, 0, 0, 0, 0]),
    "personality no randomisation": (135, 92, [0x0040000]),
    "modify_ldt": (154, None, [0, zeros(64), 64]),
    "iopl": (172, None, [3]),
    "ioperm": (173, None, [0x80, 1, 1]),
    "lookup_dcookie": (212, 18, [0, 0, 0]),
    "vhangup": (153, 58, []),
    "fanotify_mark": (301, 263, [-1, 0, 0, 0, 0]),
}


def one(number, args):
    before = os.getpid()
    got = syscall(number, *args)
    if os.getpid() != before:
        os._exit(0)  # the child of a clone that went through
    return got


def trace_exit():
    """PTRACE_SEIZE with PTRACE_O_TRACEEXIT: SIGKILL does not end a process traced this way."""
    pid = os.fork()
    if pid == 0:
        time.sleep(10)
        os._exit(0)
    try:
        return syscall(101 if x86 else 117, 0x4206, pid, 0, 0x40)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


results = {"ptrace trace exit": in_child(trace_exit)}
for what, (a, b, args) in calls.items():
    number = a if x86 else b
    if number is not None:
        results[what] = in_child(lambda: one(number, args))
report(results)
