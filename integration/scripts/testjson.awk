# Reads "go test -json" and prints a readable report: a line per package as it ends, and everything that a failing
# test or package wrote. It writes all output to the file LOG and the counts to the file COUNTS.
# It passes through lines that are not JSON, such as messages of the go command.

function field(name,    key, at, rest) {
    key = "\"" name "\":\""
    at = index($0, key)
    if (!at) return ""
    rest = substr($0, at + length(key))
    match(rest, /^([^"\\]|\\.)*/)
    return substr(rest, 1, RLENGTH)
}

function plain(s) {
    gsub(/\\\\/, "\001", s)
    gsub(/\\n/, "\n", s); gsub(/\\t/, "\t", s); gsub(/\\r/, "", s); gsub(/\\"/, "\"", s)
    gsub(/\\u003c/, "<", s); gsub(/\\u003e/, ">", s); gsub(/\\u0026/, "\\&", s); gsub(/\\u001b/, "", s)
    gsub(/\001/, "\\", s)
    return s
}

# tail returns the last n lines of s, with a note if there were more.
function tail(s, n,    lines, count, i, out) {
    count = split(s, lines, "\n")
    i = count > n ? count - n : 1
    out = i > 1 ? "    [... the first " i - 1 " lines are in the log]\n" : ""
    for (; i <= count; i++) out = out lines[i] (i < count ? "\n" : "")
    return out
}

# death returns n lines from the panic on, because hundreds of goroutines may follow. Without a panic, it returns the last n.
function death(s, n,    lines, count, i, out) {
    if (!match(s, /(^|\n)(panic: |fatal error: )/)) return tail(s, n)
    count = split(substr(s, RSTART + (RSTART > 1)), lines, "\n")
    for (i = 1; i <= count && i <= n; i++) out = out lines[i] "\n"
    if (count > n) out = out "    [... " count - n " more lines are in the log]\n"
    return out
}

function seconds(    at) {
    at = index($0, "\"Elapsed\":")
    return at ? sprintf("%.1fs", substr($0, at + 10) + 0) : ""
}

!/^\{"/ { print; print > LOG; next }

{
    action = field("Action"); pkg = field("Package"); test = field("Test")
    id = pkg SUBSEP test
}

action == "output" {
    text = plain(field("Output"))
    printf "%s", text > LOG
    buf[id] = buf[id] text
    # Bound the memory for a test that writes without end. The log has everything.
    if (length(buf[id]) > 200000) buf[id] = substr(buf[id], length(buf[id]) - 100000)
    next
}

action == "build-output" { text = plain(field("Output")); printf "%s", text; printf "%s", text > LOG; next }

test != "" && action == "pass" { passed++; delete buf[id]; next }

test != "" && action == "skip" {
    skipped++
    print "skip  " pkg " " test
    # The scripts provide what tests need, so a test skipped for lack of it counts as failed.
    if (buf[id] ~ /ORCHESTRATOR_TEST_|[Rr]oot/) { failed++; print "      must not be skipped here:\n" tail(buf[id], 20) }
    delete buf[id]
    next
}

test != "" && action == "fail" {
    failed++; bad[pkg]++
    print "\nFAIL  " pkg " " test
    printf "%s", tail(buf[id], 60)
    delete buf[id]
    next
}

action == "pass" { print "ok    " pkg " " seconds(); fflush(); delete buf[id]; next }

# The reason of a failed package is in a failed test, in the test that ran when it died, or in the package's own output.
action == "fail" {
    for (open in buf) {
        split(open, part, SUBSEP)
        if (part[1] != pkg || part[2] == "" || buf[open] == "") continue
        if (buf[open] !~ /panic:|fatal error:|DATA RACE|timed out/ && bad[pkg]) continue
        failed++; bad[pkg]++
        print "\nFAIL  " pkg " " part[2] " (did not end)"
        printf "%s", death(buf[open], 60)
    }
    if (!bad[pkg] || buf[id] ~ /panic:|fatal error:|DATA RACE|timed out/) printf "%s", death(buf[id], 60)
    if (!bad[pkg]) failed++
    print "FAIL  " pkg " " seconds()
    fflush()
    for (open in buf) if (index(open, pkg SUBSEP) == 1) delete buf[open]
}

END { printf "%d %d %d\n", passed, failed, skipped > COUNTS }
