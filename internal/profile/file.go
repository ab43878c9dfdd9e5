package profile

import (
	"errors"
	"os"
	"path"
	"path/filepath"
)

// LoadFile compiles one file. It may extend built-in profiles and those in dir, unless dir is "".
// The file may be in dir. Errors in other files are ignored.
func LoadFile(file, dir string) (*Compiled, error) {
	l := newLoader()
	if err := l.builtin(); err != nil {
		return nil, err
	}
	name, err := l.addFile(file, dir)
	if err != nil {
		return nil, err
	}
	d, err := l.merge(name, nil)
	if err != nil {
		return nil, err
	}
	return compile(d)
}

// addFile adds a file and the profiles in dir. It returns the name of the file's profile.
func (l *loader) addFile(file, dir string) (string, error) {
	inside := dir != "" && sameDir(dir, filepath.Dir(file))
	if inside {
		file = path.Join(dir, filepath.Base(file))
	} else {
		root, err := os.OpenRoot(filepath.Dir(file))
		if err != nil {
			return "", &FileError{File: file, Reason: reason(err).Error()}
		}
		defer root.Close()
		text, err := readFile(root, filepath.Base(file))
		if err != nil {
			return "", &FileError{File: file, Reason: reason(err).Error()}
		}
		l.add(file, text, false)
	}
	if dir != "" {
		if err := l.addDir(dir); err != nil {
			return "", err
		}
	}
	for name, d := range l.drafts {
		if d.files[0].file == file {
			return name, nil
		}
	}
	for _, err := range l.errs {
		if e, ok := errors.AsType[*FileError](err); ok && e.File == file {
			return "", err
		}
	}
	return "", &FileError{File: file,
		Reason: "is not a profile: the name must end in .yaml, .yml or .json in directory " + dir}
}

func sameDir(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
