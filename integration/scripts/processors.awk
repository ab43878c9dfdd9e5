# Reads the first line of /proc/stat and compares it with BEFORE, an earlier one. It prints how much of the
# processors' time was used and how much other machines took.
{
    split(BEFORE, before)
    for (i = 2; i <= 9; i++) total += used[i] = $i - before[i]
    if (total == 0) total = 1
    printf "processors %d %% used, %d %% taken by other machines\n",
        100 * (total - used[5] - used[6] - used[9]) / total, 100 * used[9] / total
}
