package android.view;

import java.util.LinkedHashMap;
import java.util.Map;

public final class FakeMenu implements Menu {
    public final Map<Integer, Item> items = new LinkedHashMap<Integer, Item>();

    @Override
    public MenuItem add(int group, int id, int order, int title) {
        Item item = new Item(id, title);
        items.put(id, item);
        return item;
    }

    public static final class Item implements MenuItem {
        public final int title;
        /** True if the item is on the bar; the others are in the overflow menu. */
        public boolean onBar;
        private final int id;
        private boolean checkable;
        private boolean checked;

        Item(int id, int title) {
            this.id = id;
            this.title = title;
        }

        @Override
        public int getItemId() {
            return id;
        }

        @Override
        public boolean isChecked() {
            return checkable && checked;
        }

        @Override
        public MenuItem setChecked(boolean value) {
            checked = value;
            return this;
        }

        @Override
        public MenuItem setCheckable(boolean value) {
            checkable = value;
            return this;
        }

        @Override
        public void setShowAsAction(int when) {
            onBar = when == SHOW_AS_ACTION_IF_ROOM;
        }
    }
}
