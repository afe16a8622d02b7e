package android.view;

import java.util.HashMap;
import java.util.Map;

public final class FakeMenu implements Menu {
    public final Map<Integer, MenuItem> items = new HashMap<>();

    @Override
    public MenuItem add(int group, int id, int order, int title) {
        items.put(id, new Item(id));
        return items.get(id);
    }

    private static final class Item implements MenuItem {
        private final int id;
        private boolean checked;

        Item(int id) { this.id = id; }
        @Override public int getItemId() { return id; }
        @Override public boolean isChecked() { return checked; }
        @Override public MenuItem setCheckable(boolean value) { return this; }
        @Override public void setShowAsAction(int when) {}

        @Override
        public MenuItem setChecked(boolean value) {
            checked = value;
            return this;
        }
    }
}
