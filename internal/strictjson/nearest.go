package strictjson

// Nearest returns the known name closest to name, or "" if none is close. Among equals, the first
// in order wins.
func Nearest(name string, known []string) string {
	best, distance := "", len(name)
	for _, k := range known {
		if d := editDistance(name, k); d < distance || d == distance && best != "" && k < best {
			best, distance = k, d
		}
	}
	if distance > (len(name)+2)/2 {
		return ""
	}
	return best
}

// editDistance returns the Levenshtein distance. Names over 64 bytes are never close.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
