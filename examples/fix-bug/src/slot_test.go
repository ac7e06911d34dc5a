package booking

import (
	"reflect"
	"testing"
)

func TestMergeJoinsOverlappingAndTouchingSlots(t *testing.T) {
	tests := []struct {
		name     string
		in, want []Slot
	}{
		{"nothing", nil, nil},
		{"apart", []Slot{{60, 90}, {0, 30}}, []Slot{{0, 30}, {60, 90}}},
		{"overlapping", []Slot{{0, 40}, {30, 60}}, []Slot{{0, 60}}},
		{"one inside the other", []Slot{{0, 90}, {30, 60}}, []Slot{{0, 90}}},
		{"touching", []Slot{{0, 30}, {30, 60}}, []Slot{{0, 60}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Merge(tt.in); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Merge(%v) = %v, want %v", tt.in, got, tt.want)
			}
		})
	}
}

func TestFreeLeavesNoEmptySlot(t *testing.T) {
	got := Free(Slot{0, 120}, []Slot{{0, 30}, {30, 60}})
	if want := []Slot{{60, 120}}; !reflect.DeepEqual(got, want) {
		t.Errorf("Free = %v, want %v", got, want)
	}
}
