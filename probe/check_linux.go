package probe

func check() []Finding {
	p, err := Open(Options{Strict: true})
	if err != nil {
		return []Finding{{Name: "block I/O probe", Status: No, Detail: explain(err)}}
	}
	_ = p.Close()
	return []Finding{{Name: "block I/O probe", Status: Yes, Detail: p.Why()}}
}
