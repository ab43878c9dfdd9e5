package profile

import (
	"errors"
	"os"
	"path"
	"path/filepath"
)

// LoadFile compiles one file, which may extend the built-in profiles and those
// of a folder ("" is none). It may be one of that folder's, too. What is wrong
// with other files is none of its business.
func LoadFile(file, dir string) (*Compiled, error) {
	l := newLoader()
	if err := l.builtin(); err != nil {
		return nil, err
	}
	name, err := l.file(file, dir)
	if err != nil {
		return nil, err
	}
	d, err := l.merge(name, nil)
	if err != nil {
		return nil, err
	}
	return compile(d)
}

// file adds a file and the folder, and returns the file's profile.
func (l *loader) file(file, dir string) (string, error) {
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
		if err := l.folder(dir); err != nil {
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
	return "", &FileError{File: file, Reason: "is no profile: its name must end with .yaml, .yml or .json, and its folder is " + dir}
}

func sameDir(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
