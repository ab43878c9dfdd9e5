package passages

import (
	"math"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// Usual parameters of BM25: the weight of repeated words and of the length of a passage.
const (
	repetition = 1.2
	lengthPart = 0.75
	// aboveWeight is the weight of a word in a heading.
	aboveWeight = 2
	// maxTerms is the maximum number of words of a question.
	maxTerms = 200
)

// rank sets the scores of all passages for a question.
func rank(all []Passage, question string) {
	asked := map[string]bool{}
	terms(question, func(t string) {
		if len(asked) < maxTerms {
			asked[t] = true
		}
	})
	if len(asked) == 0 || len(all) == 0 {
		return
	}
	counts := make([]map[string]float64, len(all))
	lengths := make([]float64, len(all))
	having := map[string]float64{}
	above := map[string]map[string]float64{} // cached counts per heading
	sum := 0.0
	for i := range all {
		counts[i] = map[string]float64{}
		terms(all[i].Text, func(t string) {
			lengths[i]++
			if asked[t] {
				counts[i][t]++
			}
		})
		for _, h := range all[i].Headings {
			found, known := above[h]
			if !known {
				found = map[string]float64{}
				terms(h, func(t string) {
					if asked[t] {
						found[t] += aboveWeight
					}
				})
				above[h] = found
			}
			for t, n := range found {
				counts[i][t] += n
			}
		}
		for t := range counts[i] {
			having[t]++
		}
		sum += lengths[i]
	}
	average := max(sum/float64(len(all)), 1)
	for i := range all {
		for t, n := range counts[i] {
			rare := math.Log(1 + (float64(len(all))-having[t]+0.5)/(having[t]+0.5))
			all[i].Score += rare * n * (repetition + 1) / (n + repetition*(1-lengthPart+lengthPart*lengths[i]/average))
		}
	}
}

// terms calls each for the words of s in normal form: without case, accents and common endings.
// Scripts without spaces between words give characters and pairs of characters.
func terms(s string, each func(string)) {
	var word strings.Builder
	var before rune // previous character of a script without spaces
	end := func() {
		if word.Len() > 0 {
			if w := word.String(); !common(w) {
				each(stem(w))
			}
			word.Reset()
		}
	}
	for _, r := range norm.NFKD.String(s) {
		switch {
		case unicode.Is(unicode.Mn, r):
			continue // an accent, separated by NFKD
		case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer):
			end()
			each(string(r))
			if before != 0 {
				each(string([]rune{before, r}))
			}
			before = r
			continue
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			if word.Len() < 64 {
				word.WriteRune(unicode.ToLower(r))
			}
		default:
			end()
		}
		before = 0
	}
	end()
}

// stem removes common English endings. Other languages are treated alike in question and text.
func stem(w string) string {
	for _, ending := range []string{"ies", "ing", "edly", "ed", "es", "s", "ly"} {
		if rest, ok := strings.CutSuffix(w, ending); ok && len(rest) >= 3 && !strings.HasSuffix(w, "ss") {
			if ending == "ies" {
				return rest + "y"
			}
			w = rest
			break
		}
	}
	return strings.TrimSuffix(w, "e")
}

// common reports whether a word is too frequent to be useful.
func common(w string) bool {
	switch w {
	case "a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "has", "have",
		"how", "i", "if", "in", "is", "it", "me", "not", "of", "on", "or", "please", "tell", "that", "the", "this",
		"to", "was", "were", "what", "when", "where", "which", "who", "why", "will", "with", "you":
		return true
	}
	return false
}
