// Command rpmlist prints the mode, name and kind of each file in a package for rpm.
package main

import (
	"fmt"
	"os"

	rpmutils "github.com/sassoftware/go-rpmutils"
)

// Flags of files, as rpm defines them.
const (
	flagConfig    = 1 << 0
	flagNoReplace = 1 << 4
)

func main() {
	if err := list(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "rpmlist:", err)
		os.Exit(1)
	}
}

func list(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	p, err := rpmutils.ReadRpm(f)
	if err != nil {
		return err
	}
	files, err := p.Header.GetFiles()
	if err != nil {
		return err
	}
	for _, file := range files {
		kind := ""
		if file.Flags()&flagConfig != 0 {
			kind = " config"
		}
		if file.Flags()&flagNoReplace != 0 {
			kind += ",noreplace"
		}
		fmt.Printf("%04o %s%s\n", file.Mode()&0o7777, file.Name(), kind)
	}
	return nil
}
