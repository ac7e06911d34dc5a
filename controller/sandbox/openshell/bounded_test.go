package openshell

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	"agentsh/controller/sandbox"
	pb "agentsh/internal/openshellpb"
)

// TestAMessageOfManyRecordsIsRefused has a message of 400 KB that would take 100 times that.
func TestAMessageOfManyRecordsIsRefused(t *testing.T) {
	nested := &pb.ListProviderProfilesResponse{Profiles: []*pb.ProviderProfile{{}}}
	for range maxFields {
		nested.Profiles[0].Endpoints = append(nested.Profiles[0].Endpoints, &pb.NetworkEndpoint{})
	}
	flat := &pb.ListProvidersResponse{Providers: make([]*pb.Provider, maxFields+1)}
	for i := range flat.Providers {
		flat.Providers[i] = &pb.Provider{}
	}
	for name, m := range map[string]protobuf.Message{"nested": nested, "flat": flat} {
		data, err := protobuf.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		err = newBounded().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, m.ProtoReflect().New().Interface())
		if !errors.Is(err, errFields) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Unknown fields count too.
	var unknown []byte
	for range maxFields + 1 {
		unknown = protowire.AppendVarint(protowire.AppendTag(unknown, 1000, protowire.VarintType), 1)
	}
	if err := newBounded().Unmarshal(mem.BufferSlice{mem.SliceBuffer(unknown)}, &pb.Sandbox{}); !errors.Is(err, errFields) {
		t.Errorf("unknown: %v", err)
	}
	flat.Providers = flat.Providers[:maxFields]
	data, _ := protobuf.Marshal(flat)
	got := &pb.ListProvidersResponse{}
	if err := newBounded().Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, got); err != nil || len(got.Providers) != maxFields {
		t.Errorf("%d records: %v", len(got.Providers), err)
	}
	var end *sandbox.End
	if err := explain("list", status.Errorf(codes.Internal, "grpc: failed to unmarshal the received message: %v", errFields)); !errors.As(err, &end) || end.Hint == "" {
		t.Errorf("no hint: %v", err)
	}
}
