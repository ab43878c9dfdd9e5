package eventhub

import (
	"errors"
)

var ErrEnough = errors.New("enough")
