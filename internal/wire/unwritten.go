package wire

import (
	"strconv"
	"strings"
)

// unwritten follows the number in the message of a fault.
const unwritten = " events could not be written; what they describe was refused"

// Unwritten is the message of the fault that counts events which are not in a log.
func Unwritten(n int) string { return strconv.Itoa(n) + unwritten }

// UnwrittenOf is the number of a message of [Unwritten]; 0: it is another message.
func UnwrittenOf(message string) int {
	number, found := strings.CutSuffix(message, unwritten)
	n, err := strconv.Atoi(number)
	if !found || err != nil {
		return 0
	}
	return max(n, 0)
}
